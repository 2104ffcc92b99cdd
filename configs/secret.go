package configs

// Secret is a string that is never printed. Convert it to string to use it.
type Secret string

const redacted = "***"

// String hides the value in logs and errors.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// GoString hides the value from %#v.
func (s Secret) GoString() string { return `"` + s.String() + `"` }

// MarshalText hides the value in YAML and JSON.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a value.
func (s *Secret) UnmarshalText(text []byte) error {
	*s = Secret(text)
	return nil
}
