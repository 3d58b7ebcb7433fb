"""Apache Beam, which an extra installs."""
