"""Einstein sums: planning, running and explaining them."""
