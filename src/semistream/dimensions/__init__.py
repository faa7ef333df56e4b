"""Dimensions of a warehouse: members with surrogate keys, their histories, in a `MasterStore`."""

from semistream.dimensions.dimension import Dimension

__all__ = ["Dimension"]
