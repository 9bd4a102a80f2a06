"""Every open request of a replica, whatever protocol it came by."""
