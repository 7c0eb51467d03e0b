"""What several parts need and none of them owns."""
