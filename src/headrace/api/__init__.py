"""What users touch: App, Task, Queue, Client, Handle, transactions, the synchronous face."""
