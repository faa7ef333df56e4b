"""What a generated weather report says of sun, moon, clouds and air: drawn at random, consistent within a report."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream_lab.workloads.numbered import BITS, Numbers, random_bits

Shares = npt.NDArray[np.float64]
# Clear and overcast skies are reported most: shares of 0 to 8 eighths.
_COVER = np.cumsum([0.12, 0.08, 0.08, 0.08, 0.07, 0.08, 0.10, 0.17, 0.22])[:-1]
_NO_TYPES = 0.08  # reports that say nothing of the types of clouds
_NO_WEATHER = 0.03
_MONTH_HOURS = 29.530588 * 24  # from new moon to new moon
_NEW_MOON = 89_208.0  # hours from 1970 to the new moon of 6 March 1980, about


@dataclass(frozen=True)
class Sky:
    """The sky over places at hours since 1970, for reports of these numbers."""

    seed: int
    use: int  # tells master and stream apart
    number: Numbers
    hour: Numbers
    latitude: Numbers
    longitude: Numbers

    def columns(self) -> dict[str, object]:
        """The columns of NDP-026B that say how the sky looks."""
        cover = np.searchsorted(_COVER, self._drawn(1), side="right")
        silent = (self._drawn(2) < _NO_TYPES) & (cover > 0)
        low = (self._drawn(3) * (cover + 1)).astype(np.int64)
        hidden = silent | (low == 8)  # low clouds cover the whole sky: nothing is known of those above
        left = cover - low
        middle_type = np.where(left > 0, (self._drawn(4) * 10).astype(np.int64), 0)
        high_type = np.where(
            (left > 0) & ((middle_type == 0) | (left > 2)), 1 + (self._drawn(5) * 9).astype(np.int64), 0
        )
        # Something must make up the cover that the low clouds leave.
        high_type = np.where((left > 0) & (middle_type == 0) & (high_type == 0), 1, high_type)
        middle_seen = np.where(middle_type > 0, np.where(high_type > 0, left // 2, left), 0)
        high_seen = left - middle_seen
        middle = np.where(middle_type > 0, np.minimum(800, middle_seen * 100 + 50 * low), 0)
        high = np.where(high_type > 0, np.minimum(800, high_seen * 100 + 25 * (low + middle_seen)), 0)
        base = np.where(cover == 0, 9, (self._drawn(6) * 9).astype(np.int64))
        return {
            "sky_bright": ((self.sun >= -90) | (self.moon > 11)).astype(np.int64),
            "weather": pa.array(self._weather(cover), mask=self._drawn(7) < _NO_WEATHER),
            "cloud_cover": cover,
            "low_amount": pa.array(low, mask=silent),
            "base_height": pa.array(base, mask=silent),
            "low_type": pa.array(np.where(low > 0, 1 + (self._drawn(8) * 9).astype(np.int64), 0), mask=silent),
            "middle_type": pa.array(middle_type, mask=hidden),
            "high_type": pa.array(high_type, mask=hidden),
            "middle_amount": pa.array(middle, mask=hidden),
            "high_amount": pa.array(high, mask=hidden),
            "middle_seen": pa.array(middle_seen, mask=hidden),
            "high_seen": pa.array(high_seen, mask=hidden),
            "change_code": np.zeros(len(self.number), np.int64),
            "solar_altitude": self.sun,
            "moonlight": self.moon,
        }

    def more_columns(self, at_sea: npt.NDArray[np.bool_], elevation: Numbers) -> dict[str, object]:
        """The columns that NDP-026C adds."""
        warm = 270 - np.abs(self.latitude) / 18 + self.sun / 12
        air = np.clip(warm + 120 * (self._drawn(11) - 0.5), -900, 590).astype(np.int64)
        sea = np.clip(warm, -18, 320).astype(np.int64)
        return {
            "pressure": pa.array((9850 + self._drawn(12) * 500).astype(np.int64), mask=self._drawn(13) < 0.05),
            "wind_speed": (self._drawn(14) ** 2 * 250).astype(np.int64),
            "wind_direction": (self._drawn(15) * 36).astype(np.int64) * 10,
            "air_temperature": air,
            "dew_point_depression": (self._drawn(16) ** 2 * 200).astype(np.int64),
            "elevation": np.where(at_sea, sea, elevation),
            "wind_measured": (self._drawn(17) < 0.6).astype(np.int64),
            "pressure_flag": np.zeros(len(self.number), np.int64),
        }

    @cached_property
    def sun(self) -> Numbers:
        """The sun's altitude in tenths of a degree."""
        return np.round(self._altitude(0.0) * 10).astype(np.int64)

    @cached_property
    def moon(self) -> Numbers:
        """Moonlight in hundredths: how much of the moon is lit, and how high it stands; negative below the horizon."""
        phase = ((self.hour - _NEW_MOON) / _MONTH_HOURS % 1.0).astype(np.float64)
        lit = (1 - np.cos(2 * np.pi * phase)) / 2
        return np.round(100 * lit * np.sin(np.radians(self._altitude(phase)))).astype(np.int64)

    def _altitude(self, behind: Shares | float) -> Shares:
        """Degrees above the horizon of what follows the sun by a share of a turn."""
        day = self.hour / 24.0 % 365.2425
        tilt = -np.radians(23.44) * np.cos(2 * np.pi * ((day + 10) / 365.2425 + behind))
        turn = 2 * np.pi * ((self.hour % 24 - 12) / 24 + self.longitude / 36_000 - behind)
        north = np.radians(self.latitude / 100)
        height = np.sin(north) * np.sin(tilt) + np.cos(north) * np.cos(tilt) * np.cos(turn)
        return np.degrees(np.arcsin(np.clip(height, -1, 1)))

    def _weather(self, cover: Numbers) -> Numbers:
        """The code of present weather: rain and snow only from a covered sky, fog from any, else nothing special."""
        chance = self._drawn(9)
        wet = (cover >= 6) & (chance < 0.3)
        foggy = ~wet & (chance > 0.97)
        code = np.where(wet, 50 + (self._drawn(10) * 50).astype(np.int64), (self._drawn(10) * 4).astype(np.int64))
        return np.where(foggy, 45, code)

    def _drawn(self, column: int) -> Shares:
        return _random_shares(self.seed, self.use + column, self.number)


def _random_shares(seed: int, column: int, number: Numbers) -> npt.NDArray[np.float64]:
    """A number in (0, 1) for each row number."""
    return (random_bits(seed, column, number) + 0.5) / 2**BITS
