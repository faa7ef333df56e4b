"""The paged store: master data in key order on disk, in immutable segments and numbered versions."""
