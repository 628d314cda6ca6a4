"""Row-wise fusion: structured ops with the same outer loops become one kernel that loops over rows."""
