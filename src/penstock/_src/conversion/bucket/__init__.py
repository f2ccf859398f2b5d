"""A data set in object storage as the output of a conversion.

The conversion runs in a local directory, as always. Files that are finished go to the bucket while it goes on, and one
conditional write of meta/info.json makes the new version visible:

    data/, videos/                files of all versions, in chunks that belong to the run that wrote them
    penstock/runs/003.json        who took the chunk 3: no other run writes there
    penstock/versions/003/        the metadata of the version that the run with the chunk 3 made; written once
    meta/info.json                names that directory: whoever reads it sees one version, whole
    meta/…, penstock/…            the same metadata under its usual names, for readers that know nothing of versions
"""
