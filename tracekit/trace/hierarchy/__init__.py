"""The hierarchy of modules, and the path of each call in it.

``modules`` shows the way: ``module_paths`` gives every call its path, ``path_collisions`` separates modules of one
path, ``module_trees`` makes a tree of the modules of each process and one hierarchy of all trees, and
``mapped_modules`` adds the modules of kernel maps.
"""
