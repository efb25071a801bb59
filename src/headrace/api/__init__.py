"""What users touch: App, Task, Queue, Client, Handle, transactions, SyncApp. Nothing that workers or stores need."""
