"""One server for stores and meetings: frames, introductions, limits, and the thread that serves
them.
"""
