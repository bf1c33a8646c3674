"""Bodies of the commands.

- ``main``: the ``keelstore`` command; finds the others
- ``up``, ``status``, ``down``, ``node_command``: one subcommand each; ``node_repair``: ``node repair``
- what ``status`` does: ``view`` (what servers tell, with ``ask``: one question to many), ``diagnosis`` and
  ``diagnosis_places``, ``diagnosis_part_power`` (what is wrong, pure), ``problems`` (what a problem is), ``status_screen``
- ``recon``, ``recon_report``: ``keelstore-recon``; ``recon_cron``, ``drive_audit``: for cron jobs; ``dispersion``,
  ``dispersion_populate``, ``dispersion_report``: copies counted by a sample
- ``explain``: why a request is refused; ``signature_diff``: where two signed S3 texts part
- ``layout``: the data directory of ``up`` and the settings in its marker file
- ``generate``: the configuration and rings that ``up`` writes
- ``processes``: start, ask and stop the processes of nodes
- ``client``: the few HTTP requests that commands make
- ``samples``: writes ``etc/*.conf-sample`` and the option reference from the option classes
- ``init``: start and stop a set of servers by their configuration files
- ``reconciler_enqueue``: names an object to the container reconciler
- ``object_relinker``: objects get their places for another part power
- ``ring_builder``, ``ring_composer``, ``ring_analyzer``: the ring commands; ``ring_device_commands`` those about devices,
  ``ring_session`` one run, ``ring_arguments``, ``ring_reports``, ``ring_usage`` and ``ring_progress`` what is read and shown
"""
