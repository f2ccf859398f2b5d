"""Blurred images, sharp images and spike files, in the folders of the public data sets."""
