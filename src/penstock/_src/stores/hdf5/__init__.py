"""Random access to HDF5 files.

`guard` and `probe` keep damaged files from this process, `file` opens them without trust, `layout`, `columns` and
`facts` tell what they hold, `survey` does so for all files of a store. `array` chooses the reader of a data set once;
the readers are in `rows` (contiguous, library, heap) and `chunks`. `column`, `episodes` and `store` make a store of it.
"""
