"""The ground floor: settings, errors, data types, events. Imports the standard library only."""
