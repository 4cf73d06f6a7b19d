package nats

// Plain is whether the data of an observation is taken without decoding it or asking its schema.
func Plain(eventType string, data []byte) bool {
	kinds, err := observables()
	if err != nil {
		panic(err)
	}
	kind := kinds[eventType]
	return kind.shape.Read(string(data), make([]string, kind.shape.Slots()))
}

// WithoutZeroBytes is withoutZeroBytes.
func WithoutZeroBytes(data []byte) []byte { return withoutZeroBytes(data) }
