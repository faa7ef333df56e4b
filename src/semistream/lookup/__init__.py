"""One lookup, from what was asked (`spec`) to rows (`run`)."""
