"""What requests hold: pydantic models, with the fields that are honoured, ignored and refused."""
