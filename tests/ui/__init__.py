"""Pages and shared frame under Streamlit's AppTest, with scripted services."""
