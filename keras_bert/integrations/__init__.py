"""Apache Beam and Ray. Each module needs its library, which an extra installs."""
