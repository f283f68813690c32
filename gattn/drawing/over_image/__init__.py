"""Pictures over an image: what patches read, and one number per patch."""
