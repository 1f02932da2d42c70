//! Sends commands to the owners of partitions and waits for their answers.
