"""What no framework owns: the scheduling core, the round, its configuration and its reports.

The pure core (`policies`, `queue`, `records`, `errors`) imports the standard library alone and is
meant to be used in other systems; nothing is imported here so that `import common.policies` stays light.
"""
