"""What a machine is and can do, as data: the compiler asks here and never tests for names."""
