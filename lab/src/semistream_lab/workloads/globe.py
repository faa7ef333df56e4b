"""Where weather is observed: land stations and ships, clustered as on the globe.

The clusters are a rough picture of the real network, not the network: where people live there are stations, along the
trade routes there are ships. Stations lie on whole minutes of a degree, as in their catalogue, so some share a
longitude; ships move along their route, and report tenths of a degree.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from semistream_lab.workloads.numbered import Numbers

CIRCLE = 36_000  # hundredths of a degree
# weight; latitude and longitude of the middle, and their spreads, in degrees
_LAND = np.array(
    [
        (26, 50, 7, 12, 12),  # Europe
        (10, 56, 6, 80, 28),  # Siberia
        (13, 35, 8, 112, 11),  # China
        (3, 36, 4, 135, 5),  # Japan, Korea
        (6, 22, 7, 78, 8),  # India
        (6, 8, 9, 108, 12),  # South-East Asia
        (5, 31, 6, 48, 9),  # Middle East
        (9, 39, 6, 276, 8),  # North America, east
        (7, 43, 7, 246, 9),  # North America, west
        (3, 62, 5, 250, 24),  # the far north of America
        (3, 17, 5, 280, 9),  # Central America
        (5, -18, 14, 302, 8),  # South America
        (5, 14, 9, 2, 11),  # West Africa
        (4, -12, 14, 30, 7),  # East and southern Africa
        (4, -30, 6, 145, 13),  # Australia
        (1, -70, 4, 60, 70),  # Antarctica
        (1, 0, 14, 185, 18),  # Pacific islands
    ],
    np.float64,
)
_SEA = np.array(
    [
        (34, 45, 8, 325, 18),  # North Atlantic
        (25, 40, 8, 190, 25),  # North Pacific
        (12, 40, 6, 10, 14),  # Mediterranean and western Europe
        (10, 20, 10, 125, 9),  # western Pacific
        (11, 5, 12, 70, 14),  # Indian Ocean
        (6, -25, 12, 345, 16),  # South Atlantic
        (2, -30, 10, 210, 30),  # South Pacific
    ],
    np.float64,
)
_ROUTE = 1500.0  # a ship's way to and fro, in hundredths of a degree on each side of its middle


@dataclass(frozen=True)
class Globe:
    """``stations`` fixed places first, then ``ships`` that move."""

    stations: int
    ships: int
    seed: int

    @property
    def platforms(self) -> int:
        """All that report."""
        return self.stations + self.ships

    @cached_property
    def _homes(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Latitude and longitude of every platform, a ship's in the middle of its route; hundredths of a degree."""
        random = np.random.default_rng([self.seed, 26])
        places = [_drawn(random, _LAND, self.stations), _drawn(random, _SEA, self.ships)]
        latitude, longitude = np.concatenate(places, axis=1)
        return latitude, longitude

    @cached_property
    def elevations(self) -> Numbers:
        """Metres above the sea, of every platform."""
        high = np.random.default_rng([self.seed, 27]).gamma(0.7, 350.0, self.platforms)
        high[self.stations :] = 0
        return np.minimum(high, 4800).astype(np.int64)

    def places(self, platform: Numbers, hour: Numbers) -> tuple[Numbers, Numbers]:
        """Latitude and longitude of platforms at an hour, in hundredths of a degree, longitude from 0 to 35,999."""
        latitude, longitude = self._homes[0][platform], self._homes[1][platform]
        at_sea = platform >= self.stations
        # To and fro in thirteen to thirty days, each ship at its own pace.
        turn = (hour / (24.0 * (13 + platform % 18)) + platform * 0.618) % 1.0
        moved = np.round((longitude + _ROUTE * (4 * np.abs(turn - 0.5) - 1)) / 10) * 10
        east = np.where(at_sea, moved, longitude).astype(np.int64) % CIRCLE
        return latitude.astype(np.int64), east


def _drawn(random: np.random.Generator, clusters: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.float64]:
    weight, north, north_spread, east, east_spread = clusters.T
    which = random.choice(len(clusters), count, p=weight / weight.sum())
    latitude = np.clip(random.normal(north[which], north_spread[which]), -89, 89)
    longitude = random.normal(east[which], east_spread[which]) % 360
    minutes = np.round(np.stack([latitude, longitude]) * 60) / 60
    return np.round(minutes * 100)
