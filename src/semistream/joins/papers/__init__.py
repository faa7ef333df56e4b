"""The joins of the papers, one file each, and what several of them share."""
