package archiveclient

// CheckTokenFile reports what is wrong with a token file: that it is missing, that others may read it, or that it holds no
// token. What is in it is never told.
func CheckTokenFile(file string) error {
	_, err := readToken(file)
	return err
}
