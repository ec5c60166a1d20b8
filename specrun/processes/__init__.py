"""Work in processes of its own: functions that must be stopped at any time, and chat templates in a sandbox."""
