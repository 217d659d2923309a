"""The work that `poise demo` does: one machine, real images, six models, the best of them put to use.

The scripts are a user's scripts. They know nothing of Poise but a few environment variables, they run by hand as well
(`python prepare.py && python train.py svm`), and any of them may be killed at any moment and simply run again.
`digits.yaml` says which needs which.
"""
