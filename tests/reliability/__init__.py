"""Kills, full disks, dead ranks, nodes without their files, hostile files and random options."""
