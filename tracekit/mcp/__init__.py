"""Answers for agents: the questions, as tools of the Model Context Protocol.

``folders`` decides what may be read, ``bounds`` refuses arguments and cuts answers to size, ``tools`` are what an agent
can call, ``server`` offers them with the official SDK. Nothing is written but datasets in a folder of temporary files.
"""
