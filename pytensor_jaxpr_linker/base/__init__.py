"""What every room reads and what reads no room: errors, options, marks, the table of rules, and what differs between releases of JAX and PyTensor."""
