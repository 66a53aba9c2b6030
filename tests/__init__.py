"""Tests of Temper, and the lab they run on."""
