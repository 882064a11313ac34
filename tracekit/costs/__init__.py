"""FLOPs and bytes: of every call (``calls``), and added up by module (``subtree_costs``)."""
