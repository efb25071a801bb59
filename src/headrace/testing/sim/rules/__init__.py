"""What each operation may answer, given all answers before it. One file per operation or pair of them."""
