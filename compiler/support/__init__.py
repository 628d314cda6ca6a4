"""What any layer may use: caches and temporary files on disk, captured stderr, the cluster's other machines, BLAS."""
