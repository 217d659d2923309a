"""The work and the scenario of `poise demo`.

The scripts are ordinary user scripts. They use only a few environment variables and files of Poise, they also run by
hand (`python prepare.py && python elastic.py`), and any of them can be killed at any moment and run again:

* `prepare.py` makes the images, `elastic.py` (`training.yaml`) trains on them with any number of workers, `label.py`
  (`urgent.yaml`) labels them under a deadline, and `digits.py` (`service.yaml`) is a model to serve.
* `digits.yaml` is a graph: `train.py` trains six models, `pick.py` picks the best, and `infer.py` uses it.

`live.py` runs the scenario, `compared.py` the trace in `trace/` in the twin, and `page.py` draws both.
"""
