from remanence.cli import main

main()
