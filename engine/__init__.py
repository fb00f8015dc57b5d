"""The lab without a screen: starts vLLM, measures it, keeps the results.

Nothing below this package imports streamlit or plotly.
"""
