#!/usr/bin/python3 -IS
