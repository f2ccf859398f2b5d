"""What lies in the files of a data set: records of JSON, headers of images, sizes of samples."""
