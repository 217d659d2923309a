"""The work that `poise demo` does, and the story that it tells with it.

The scripts are a user's scripts. They know nothing of Poise but a few environment variables and files, they run by hand
as well (`python prepare.py && python elastic.py`), and any of them may be killed at any moment and simply run again:

* `prepare.py` makes the images, `elastic.py` (`training.yaml`) trains on them with any number of workers, `label.py`
  (`urgent.yaml`) labels them in a hurry, and `digits.py` (`service.yaml`) is a model to serve.
* `digits.yaml` is a graph: `train.py` trains six models, `pick.py` picks the best, `infer.py` puts it to use.

`live.py` runs the story, `compared.py` the trace in `trace/` in the twin, and `page.py` draws both.
"""
