package nats

// Hold sets points at which tests hold or end the reader; nil ones do nothing.
func (i *Ingest) Hold(concluded, published func() error) {
	i.hooks = hooks{concluded: concluded, published: published}
}
