"""Models as people write them for unpacked rows, to be trained on packed ones: nothing here knows packpass."""
