"""Answers for agents: the questions, as tools of the Model Context Protocol.

``bounds`` decides what may be asked and read, and cuts answers to size, ``tools`` are what an agent can call, and
``server`` offers them with the official SDK. Nothing is written but datasets in a folder of temporary files.
"""
