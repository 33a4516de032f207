//go:build !race

package appliance_test

// scalePart is the part of the full scale that TestScaleOfDaemons tells.
const scalePart = 1
