"""What adapters are built from: runtime, random numbers, views, BatchNorm, optimisers, batches on several processes."""
