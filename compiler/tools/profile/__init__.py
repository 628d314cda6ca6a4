"""Where the time of compiled code goes: counters in the code, what nodes cost at least, and the report on both."""
