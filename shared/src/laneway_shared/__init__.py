"""What more than one Laneway service needs: lifecycle, messages, topology, broker, settings, telemetry."""
