"""What is seen: Streamlit widgets, pure figure builders, and the one place that opens the services."""
